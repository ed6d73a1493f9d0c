"""The style sheet of a report, light and dark."""

STYLE = """
:root { color-scheme: light dark; --page: #fbfbf9; --card: #fff; --ink: #1d2129; --soft: #5f6774; --rule: #e2e4e8;
  --arm0: #9aa1ad; --arm1: #2f6fde; --arm2: #d9730d; --arm3: #0f8f6f; --arm4: #9a4fd0; --bad: #b3261e; --good: #157347;
  --draft: #d3f3dd; --correction: #ffe6b8; --bonus: #cdeaf7; --loss: #b3261e14; }
@media (prefers-color-scheme: dark) { :root { --page: #14161a; --card: #1c1f25; --ink: #e8eaee; --soft: #9aa3b0;
  --rule: #333842; --arm0: #7d8592; --arm1: #6ea1ff; --arm2: #f2a154; --arm3: #46c9a5; --arm4: #c08af0; --bad: #ff8a80;
  --good: #6bd39b; --draft: #1d4a2f; --correction: #5a431a; --bonus: #1d4257; --loss: #ff8a8018; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 32px 24px 64px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 0 0 8px; }
h3 { font-size: 15px; margin: 16px 0 4px; }
p { margin: 4px 0 10px; } .lead, .note { color: var(--soft); } .warn { color: var(--bad); font-weight: 600; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 18px 20px; margin: 18px 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
table { font-size: 14px; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } th:nth-child(-n+3), td:nth-child(-n+3) { text-align: left; }
td:last-child { text-align: left; white-space: normal; min-width: 9em; }
tr.first td { border-top: 2px solid var(--rule); } .slow, td.slow { color: var(--bad); } td.fast { color: var(--good); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--page); border: 1px solid var(--rule);
  border-radius: 6px; padding: 10px 12px; margin: 6px 0; } details { margin: 6px 0; } summary { cursor: pointer; }
.draft { background: var(--draft); } .correction { background: var(--correction); } .bonus { background: var(--bonus); }
.legend .entry { margin-right: 18px; } .sample { border-radius: 3px; padding: 0 5px; }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  background: currentColor; }
.grid4 { display: grid; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); gap: 12px; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; } svg text { fill: var(--ink); }
svg .tick, svg .axis, svg .arm { fill: var(--soft); } svg .group { font-weight: 600; font-size: 13px; }
svg text.slow { fill: var(--bad); } svg .grid { stroke: var(--rule); }
svg .even { stroke: var(--ink); stroke-dasharray: 3 3; }
svg .fill { fill: currentColor; } svg .whisker { stroke: var(--ink); stroke-width: 1.5; }
svg .loss { fill: var(--loss); }
svg .curve { fill: none; stroke: currentColor; stroke-width: 2; }
svg .cost { fill: none; stroke: var(--bad); stroke-width: 2; }
svg .ideal { stroke: var(--soft); stroke-dasharray: 2 4; } svg .stem { stroke: currentColor; stroke-dasharray: 2 2; }
svg .dash { stroke: currentColor; stroke-width: 3; } .measured { color: var(--bad); }
.arm0 { color: var(--arm0); } .arm1 { color: var(--arm1); } .arm2 { color: var(--arm2); } .arm3 { color: var(--arm3); }
.arm4 { color: var(--arm4); } .phase0 { color: var(--arm2); } .phase1 { color: var(--arm1); }
.phase2 { color: var(--arm3); }
.phase3 { color: var(--arm4); } .phase4 { color: var(--arm0); }
"""

"""Other engines, and our own, each in a process and an environment of its own, measured by the same questions.

``make peers`` installs them under ``.peers/``. A ``with_*.py`` runs there and imports nothing of ours but ``worker``;
``client`` is the measuring side.
"""

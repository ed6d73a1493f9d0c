"""Examines a pair before anything is served: does it load, does it fit, is it exact, and will it be faster?

``examine`` puts the checks in order; each file beside it holds those of one kind.
"""

from surefoot.doctor.check import Check, Level, Report
from surefoot.doctor.examination import Examination, examine

__all__ = ["Check", "Examination", "Level", "Report", "examine"]

"""Drives pages made by `sluice report` in a real headless Chromium, one for all tests.

    browser_test.py PROGRAM [unittest's arguments]
"""

import os
import sys
import unittest

from browser import Browser
# Found by unittest:
from audit_test import Audit  # noqa: F401
from contract_test import Contract  # noqa: F401
from directions_test import Directions  # noqa: F401
from figures_test import Figures, Links  # noqa: F401
from headline_test import Headline, Names  # noqa: F401
from hostile_test import HostileText  # noqa: F401
from layout_test import Layout  # noqa: F401
from methods_test import Methods  # noqa: F401
from needle_test import Needles  # noqa: F401
from opened_test import Opened  # noqa: F401
from page_test import Watchers, WholePage  # noqa: F401
from story_test import Compare, Story, TokenLoss  # noqa: F401
from token_map_test import LongText, TokenMap  # noqa: F401

if __name__ == "__main__":
    Browser.program = os.path.abspath(sys.argv.pop(1))
    Browser.start()
    try:
        unittest.main(verbosity=2)
    finally:
        Browser.stop()

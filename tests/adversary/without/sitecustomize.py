"""Python imports this when it starts: a defence is taken out of the process; see ``defences``."""

import os

if "HEDGEROW_TEST_WITHOUT" in os.environ:
    from tests.adversary.defences import REMOVALS

    REMOVALS[os.environ["HEDGEROW_TEST_WITHOUT"]].take_out()

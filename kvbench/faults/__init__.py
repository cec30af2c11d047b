"""The known ways to be wrong, each a small fault over a correct adapter, and correct adapters with unusual habits.

The suites are measured against them and never see them: nothing in `kvbench.suites` names a fault.
"""

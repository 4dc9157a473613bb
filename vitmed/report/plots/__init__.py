"""Figures: pure functions to a matplotlib `Figure`, without the global state of pyplot. All are in `table.PLOTS`."""

"""Figures: pure functions to a matplotlib `Figure` without global state. All are in `plot_table.PLOTS`."""

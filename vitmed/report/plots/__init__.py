"""Figures: pure functions to a matplotlib `Figure` without global state. All are in `chapters.DRAWN`."""

def fit_reach(p, coverage):
    return None

"""``enrich``: the step, its calls, its queue and its cache."""

"""Workers as Ray actors. Rule: nothing outside this package imports ray, and it only when it is used."""

"""The command line: one file a verb; heavy parts are imported inside the verb."""

"""Records in, tables, pictures and pages out. Nothing here runs a model."""

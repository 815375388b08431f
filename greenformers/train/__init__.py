"""Training: the glue between our models and the Hugging Face Trainer."""

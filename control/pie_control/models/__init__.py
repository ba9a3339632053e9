"""A served model: its pools and scheduler, its tokenizer, its adapters."""

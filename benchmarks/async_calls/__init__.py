"""`async`: asynchronous function calls beside the synchronous ways (AsyncLM, section 6)."""

"""The HTTP gateway under load: beside vLLM, with many clients, and what watching it costs."""

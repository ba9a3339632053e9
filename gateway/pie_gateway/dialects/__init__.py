"""How families of models write calls and thoughts, and what a client is shown of it."""

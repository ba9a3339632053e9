"""The contract's functions, as the guest calls them: one module per group of traits.

Every function takes the calling instance first, checks its arguments before anything changes, and
raises `ApiError` for what goes back to the guest as `code: message`. Functions that need only the
instance are a module's; the others are methods of a class made with the parts they use.
"""

"""`contexts`: one program with many contexts beside many programs with one each."""

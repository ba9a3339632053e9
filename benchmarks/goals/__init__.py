"""Goals of whole programs, held against first come, first served and equal turns."""

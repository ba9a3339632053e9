"""Device programs: what a program's own tensor code may say, and what it means."""

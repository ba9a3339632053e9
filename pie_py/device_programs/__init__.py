"""Device programs: what a program's own tensor code may say."""

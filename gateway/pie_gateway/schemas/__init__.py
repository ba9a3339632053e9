"""What requests and answers look like. No endpoint is here."""

"""What speculation in the step brings."""

"""The gain of speculation in the step."""

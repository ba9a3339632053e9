"""The policies, a file each. What a policy is, is said in `policy.py`."""

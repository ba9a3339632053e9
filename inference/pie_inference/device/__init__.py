"""What is said to a device and heard from it: uploads, results under way, order between both."""

"""What countersink costs and carries, beside what people build by hand: see README.md."""

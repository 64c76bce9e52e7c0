"""The passes of Spark over the rows of ledgers: from files to the sums that the driver gets."""

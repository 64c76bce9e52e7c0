"""Commands that move and count messages: syphon, redrive, report, ledger; here and on Spark."""

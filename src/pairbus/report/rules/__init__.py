"""The rules of a report: outages, incidents, waits and the bill, made of sums. No Spark here."""

"""What an outage did and what pairing cost: from ledgers to a bill, an account of availability, and a page."""

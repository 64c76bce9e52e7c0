"""Tests of the rules of topic subscriptions."""

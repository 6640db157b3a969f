"""Connected clients: their subscriptions, notifications to deliver, and answers to send."""

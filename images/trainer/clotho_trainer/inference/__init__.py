"""The policy as a service: engines that sample from it, and the HTTP routes in front of them."""

"""The trainer: takes optimiser steps on leased batches and serves the policy it trains."""

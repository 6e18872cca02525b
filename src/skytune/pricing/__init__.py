"""The room of prices: what a machine costs an hour, and what the attempts of a run have cost."""

"""The common ground of the handlers of share groups: their requests, and the records that members may get."""

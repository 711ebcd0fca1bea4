"""The maintained fakes of Mainstem's ports: one per port, used by every room's tests instead of mocks."""

"""Groups whose partitions the coordinator assigns, of any protocol: members with epochs, and a target for each.

A group's `epoch` rises with every change of members, subscriptions or topics; its `assignment_epoch` is the epoch for
which the targets were made; a member's own epoch is that of the target which it has reached, or is on its way from.
"""

"""The console's views of this node (`console.views.node_views.NodeViews`), read from its roles.

Reading changes nothing. Views are built on request; the costly ones (bytes per queue) read the indexes of runs and
segments, off the event loop where they are large.
"""

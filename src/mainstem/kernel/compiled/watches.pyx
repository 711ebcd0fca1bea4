"""Who waits for something to be committed to which queues; see the twin.

Each watch has an array of nodes, one per queue, which are chained into the buckets of one hash table by queue. The
nodes of a watch that waits stay where they are: the table holds the watch until it is ended.
"""

cimport cython
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint64_t

from mainstem.kernel.compiled.fetch_plan cimport FetchPlan
from mainstem.kernel.compiled.fetch_rows cimport NOBODY, PlanRow
from mainstem.kernel.compiled.layout cimport WATCHED, Slot
from mainstem.kernel.compiled.queue_table cimport QueueTable

cdef enum:
    BUCKETS_MIN = 64
cdef uint64_t SPREAD = 0x9E3779B97F4A7C15

cdef struct Node:
    uint64_t queue_id
    PyObject *watch          # which the node is part of
    Node *next               # in the bucket
    Node **link              # what points to the node


@cython.final
cdef class Watch:
    """One reader's. Made by `Watches.begin`."""

    cdef readonly object listener
    cdef int64_t missing
    cdef bint fired
    cdef Node *nodes
    cdef Py_ssize_t count

    def __dealloc__(self):
        PyMem_RawFree(self.nodes)


@cython.final
cdef class Watches:
    """All watches over the queues of a table."""

    cdef QueueTable table
    cdef set waiting         # every watch that has nodes in buckets
    cdef Node **buckets
    cdef uint64_t bucket_mask
    cdef int64_t node_count

    def __cinit__(self, QueueTable table not None):
        self.table = table
        self.waiting = set()
        self.buckets = <Node **> PyMem_RawCalloc(BUCKETS_MIN, sizeof(Node *))
        if self.buckets == NULL:
            raise MemoryError("no memory for watches")
        self.bucket_mask = BUCKETS_MIN - 1

    def __dealloc__(self):
        PyMem_RawFree(self.buckets)

    def __len__(self):
        """Watches of queues: a watch of two queues counts twice."""
        return self.node_count

    def begin(self, queues, bytes_min, listener):
        """Watch the queues of a plan that were read in this round, or queues by id, from the high watermark on that
        was found or is given. At least one byte has to come. None when one of the queues is further already, or
        gone."""
        cdef Watch watch = Watch.__new__(Watch)
        cdef int64_t least = bytes_min
        cdef Py_ssize_t number
        watch.listener = listener
        watch.missing = least if least > 0 else 1
        if type(queues) is FetchPlan:
            if not self.take_plan(watch, <FetchPlan> queues):
                return None
        elif not self.take_ends(watch, dict(queues)):
            return None
        self.reserve(watch.count)
        self.waiting.add(watch)
        for number in range(watch.count):
            self.link(watch, &watch.nodes[number])
        return watch

    cdef bint take_plan(self, Watch watch, FetchPlan plan) except -1:
        cdef int32_t number = plan.first_row
        cdef PlanRow *row
        watch.nodes = new_nodes(plan.row_count)
        while number != NOBODY:
            row = &plan.rows[number]
            if row.high_watermark >= 0 and not self.take(watch, row.queue_id, row.high_watermark):
                return False
            number = row.next
        return True

    cdef bint take_ends(self, Watch watch, dict ends) except -1:
        watch.nodes = new_nodes(len(ends))
        for queue_id, end in ends.items():
            if not self.take(watch, queue_id, end):
                return False
        return True

    cdef bint take(self, Watch watch, uint64_t queue_id, int64_t end) noexcept nogil:
        """Add a queue to a watch; False when it is further already, or gone."""
        cdef Slot *slot = self.table.find_slot(queue_id)
        if slot == NULL or slot.committed_end > end:
            return False
        watch.nodes[watch.count].queue_id = queue_id
        watch.nodes[watch.count].link = NULL
        watch.count += 1
        return True

    cdef int reserve(self, int64_t count) except -1:
        """As many buckets as there will be nodes."""
        cdef uint64_t size = self.bucket_mask + 1, number
        cdef Node **old = self.buckets
        cdef Node **buckets
        cdef Node *node
        cdef Node *following
        if self.node_count + count <= <int64_t> size:
            return 0
        while <int64_t> size < self.node_count + count:
            size *= 2
        buckets = <Node **> PyMem_RawCalloc(size, sizeof(Node *))
        if buckets == NULL:
            raise MemoryError(f"no memory for {self.node_count + count} watches of queues")
        number = self.bucket_mask + 1
        self.buckets = buckets
        self.bucket_mask = size - 1
        while number > 0:
            number -= 1
            node = old[number]
            while node != NULL:
                following = node.next
                self.insert(node)
                node = following
        PyMem_RawFree(old)
        return 0

    cdef Node **bucket_of(self, uint64_t queue_id) noexcept nogil:
        return &self.buckets[queue_id * SPREAD >> 32 & self.bucket_mask]

    cdef void insert(self, Node *node) noexcept nogil:
        cdef Node **bucket = self.bucket_of(node.queue_id)
        node.next = bucket[0]
        if node.next != NULL:
            node.next.link = &node.next
        node.link = bucket
        bucket[0] = node

    cdef void link(self, Watch watch, Node *node) noexcept:
        """Put a node into its bucket, unless its watch has the queue already: the nodes of a new watch stand in front
        of all others."""
        cdef Node *other = self.bucket_of(node.queue_id)[0]
        while other != NULL and other.watch == <PyObject *> watch:
            if other.queue_id == node.queue_id:
                return
            other = other.next
        node.watch = <PyObject *> watch
        self.insert(node)
        self.node_count += 1
        self.table.find_slot(node.queue_id).entries |= WATCHED

    def end(self, Watch watch not None):
        """Forget a watch; one that is forgotten already is no error."""
        cdef Py_ssize_t number
        cdef Node *node
        if watch not in self.waiting:
            return
        for number in range(watch.count):
            node = &watch.nodes[number]
            if node.link == NULL:
                continue
            node.link[0] = node.next
            if node.next != NULL:
                node.next.link = node.link
            node.link = NULL
            self.node_count -= 1
            self.unmark(node.queue_id)
        self.waiting.discard(watch)

    cdef void unmark(self, uint64_t queue_id) noexcept nogil:
        """Nobody watches the queue any more, unless somebody does."""
        cdef Node *node = self.bucket_of(queue_id)[0]
        cdef Slot *slot
        while node != NULL:
            if node.queue_id == queue_id:
                return
            node = node.next
        slot = self.table.find_slot(queue_id)
        if slot != NULL:
            slot.entries &= ~<int64_t> WATCHED

    def committed(self, batches):
        """(queue id, bytes) of batches that have just been applied. Returns the listeners of the watches that fire, in
        no particular order."""
        cdef list found = []
        cdef uint64_t queue_id
        cdef int64_t size
        if not self.node_count:
            return found
        for queue_id, size in batches:
            self.look(queue_id, size, False, found)
        return found

    def changed(self, queue_ids):
        """The listeners of the watches of these queues, which changed in another way: they fire."""
        cdef list found = []
        cdef uint64_t queue_id
        for queue_id in queue_ids:
            self.look(queue_id, 0, True, found)
        return found

    def topic_gone(self, topic_number):
        """The listeners of the watches of a topic's queues: they fire."""
        cdef uint64_t wanted = topic_number, bucket
        cdef list found = []
        cdef Node *node
        for bucket in range(self.bucket_mask + 1):
            node = self.buckets[bucket]
            while node != NULL:
                if node.queue_id >> 32 == wanted:
                    fire(<Watch> node.watch, found)
                node = node.next
        return found

    cdef int look(self, uint64_t queue_id, int64_t size, bint changed, list found) except -1:
        """Tell the watches of a queue of so many bytes, or of another change."""
        cdef Node *node = self.bucket_of(queue_id)[0]
        cdef Watch watch
        while node != NULL:
            if node.queue_id == queue_id:
                watch = <Watch> node.watch
                watch.missing -= size
                if changed or watch.missing <= 0:
                    fire(watch, found)
            node = node.next
        return 0


cdef Node *new_nodes(Py_ssize_t count) except NULL:
    cdef Node *nodes = <Node *> PyMem_RawMalloc((count if count else 1) * sizeof(Node))
    if nodes == NULL:
        raise MemoryError(f"no memory for watches of {count} queues")
    return nodes


cdef int fire(Watch watch, list found) except -1:
    if not watch.fired:
        watch.fired = True
        found.append(watch.listener)
    return 0

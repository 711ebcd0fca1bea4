"""Files of a storage node lie in memory: these tests sync thousands of times."""

from tests.harness.files_in_memory import path_in_memory as path_in_memory
from tests.harness.files_in_memory import path_on_disk as path_on_disk

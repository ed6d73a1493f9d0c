"""Defects between Python and the kernels. Killers must not depend on the instruction sets of the machine."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LIBRARY = "tests/native/test_library.py::"

KERNELS = (
    Mutant(
        name="a-record-of-any-size-is-handed-over",
        bug="Python and the library differ in a struct, and the kernels read other fields",
        file="native/library.py",
        before="if size != ctypes.sizeof(record):",
        after="if size is None:",
        killer=LIBRARY + "test_a_record_of_another_size_is_noticed",
    ),
    Mutant(
        name="a-library-of-any-interface-is-used",
        bug="a library from before an upgrade stays in use",
        file="native/library.py",
        before="if found != ABI:",
        after="if found is None:",
        killer=LIBRARY + "test_a_library_of_another_interface_is_not_used",
    ),
    Mutant(
        name="threads-stay-as-they-were",
        bug="the number of threads is read once, and torch's later changes are not followed",
        file="native/library.py",
        before="if wanted != self._set:",
        after="if False:",
        killer=LIBRARY + "test_threads_follow_torch_until_a_number_is_asked_for",
    ),
    Mutant(
        name="packed-weights-are-never-freed",
        bug="every model that was loaded and dropped keeps its memory",
        file="native/tensors.py",
        before="weakref.finalize(self, library.free, memory).atexit = False",
        after="weakref.finalize(self, int, memory).atexit = False",
        killer=LIBRARY + "test_a_packed_weight_gives_its_memory_back",
    ),
    Mutant(
        name="a-pairs-biases-change-places",
        bug="the bias of the gates is added to the ups",
        file="native/tensors.py",
        before="for half, bias in enumerate(biases):",
        after="for half, bias in enumerate(biases[::-1]):",
        killer=LIBRARY + "test_a_pair_holds_gates_and_ups_in_blocks_by_turns[portable-True-torch.float32]",
    ),
    Mutant(
        name="strided-rows-are-read-as-if-packed",
        bug="a view of columns is computed with its neighbours' elements",
        file="native/tensors.py",
        before="if fits and right and tensor.is_cpu and tensor.is_contiguous():",
        after="if fits and right and tensor.is_cpu:",
        killer=LIBRARY + "test_what_the_kernels_cannot_read_is_refused[stride]",
    ),
)

"""Which tests of large grids run only every so many cases in a run of the whole suite, which CI does in every change.

The others are marked `slow`: `make bench` runs them. A run of chosen files or folders runs all of their cases. Each
number has no divisor in common with the inner sides of its grid, so that every value of every side is met.
"""

EVERY = {
    "changes/test_pairs.py::test_two_by_two": 6,
    "changes/test_contract.py::test_alone": 5,
    "changes/test_contract.py::test_copies_types_and_state_dicts": 3,
    "changes/test_experts.py::test_reloaded_by_the_plain_class_to_the_bit": 4,
    "changes/test_peft.py::test_lora_learns_beside_what_was_changed": 2,
    "attention/test_module.py::test_compiles_to_one_graph": 5,
    "attention/test_formula.py::test_outputs_and_every_gradient_are_those_of_the_formula": 3,
    "attention/test_padding.py::test_a_text_among_padding_is_the_text_alone": 3,
    "attention/test_flex.py::test_equals_the_tiles": 3,
    "attention/test_patterns.py::test_outputs_and_every_gradient_are_those_of_dense_attention": 3,
    "attention/test_patterns.py::test_and_in_single_precision": 3,
    "attention/test_growth.py::test_memory_grows_as_claimed": 3,
    "attention/test_transforms.py::test_second_derivatives": 5,
    "attention/test_transforms.py::test_checkpoints": 5,
    "blocks/test_star.py::test_outputs_and_gradients_are_those_of_the_algorithm": 3,
    "blocks/test_bp.py::test_it_is_the_definition": 5,
    "blocks/test_set_transformer.py::test_outputs_and_gradients_are_those_of_the_formula": 3,
    "checkpoint/test_reload.py::test_load_gives_it_back_and_so_once_more": 3,
    "cli/test_compare_stopped.py::test_a_run_that_was_stopped_goes_on_to_the_same_figures": 2,
    "compress/test_other_inputs.py::test_the_command": 2,
    "docs/test_pages.py::test_the_python_of_a_page_runs": 3,
    "genome/test_longest.py::test_needed_is_what_a_real_step_needs": 4,
    "genome/test_longest.py::test_longest_fits_and_two_more_do_not": 2,
    "lowrank/test_multihead.py::test_equals_the_attention_it_replaces": 5,
    "lowrank/test_multihead.py::test_inside_an_encoder": 5,
    "measure/test_trace.py::test_work_grows_linearly_in_layers": 3,
    "measure/test_trace.py::test_its_flops_are_those_of_the_call": 3,
    "model/test_seq2seq.py::test_equals_its_plain_form": 5,
    "model/test_layer_reduce.py::test_equals_the_mechanism_on_projected_keys_and_values": 5,
    "model/test_layer_plain.py::test_every_size_around_the_slice": 3,
    "model/test_recomputed.py::test_gradients_are_those_of_kept_activations": 3,
    "solve/test_replay.py::test_the_same_factors": 4,
    "solve/test_unchanged.py::test_broken_off_inside": 5,
    "train/test_several_processes.py::test_the_curve_is_that_of_one_process": 3,
    "train/test_resume.py::test_to_the_bit": 2,
}

"""Which cases of grids run in a run of the whole suite, which CI does in every change.

The others are marked `slow`: `make bench` runs them. A run of chosen files or folders runs all of their cases.

Of a grid of two sides or more, those on every third diagonal run, or every second where a side has two values: every
value of every side is met, and, of three sides, every pair. Of the tests in `EVERY`, whose cases take long or have one
side, one in so many runs; each number has no divisor in common with the inner sides of its grid, so that the values of
a side take turns. Of the tests in `LONG` no case runs.
"""

from collections.abc import Hashable, Sequence

EVERY = {
    "changes/test_pairs.py::test_two_by_two": 16,
    "changes/test_contract.py::test_alone": 10,
    "changes/test_contract.py::test_copies_types_and_state_dicts": 3,
    "changes/test_half_precision.py::test_rounded_it_runs_and_is_read_again": 5,
    "changes/test_experts.py::test_reloaded_by_the_plain_class_to_the_bit": 4,
    "changes/test_peft.py::test_lora_learns_beside_what_was_changed": 2,
    "attention/test_module.py::test_compiles_to_one_graph": 10,
    "attention/test_formula.py::test_outputs_and_every_gradient_are_those_of_the_formula": 5,
    "attention/test_padding.py::test_a_text_among_padding_is_the_text_alone": 3,
    "attention/test_flex.py::test_equals_the_tiles": 3,
    "attention/test_patterns.py::test_outputs_and_every_gradient_are_those_of_dense_attention": 3,
    "attention/test_patterns.py::test_and_in_single_precision": 3,
    "attention/test_growth.py::test_flops_grow_as_claimed": 3,
    "attention/test_growth.py::test_memory_grows_as_claimed": 3,
    "attention/test_registry.py::test_the_shapes_of_the_signature_hold": 3,
    "attention/test_transforms.py::test_second_derivatives": 5,
    "attention/test_transforms.py::test_checkpoints": 5,
    "blocks/test_star.py::test_outputs_and_gradients_are_those_of_the_algorithm": 3,
    "blocks/test_bp.py::test_it_is_the_definition": 5,
    "blocks/test_set_transformer.py::test_outputs_and_gradients_are_those_of_the_formula": 3,
    "changes/test_teacher_cache.py::test_the_same_is_learned_and_the_teacher_is_asked_once": 3,
    "checkpoint/test_guard.py::test_what_is_known_is_as_it_was": 2,
    "checkpoint/test_reload.py::test_a_fresh_process_reads_the_same_network": 3,
    "checkpoint/test_reload.py::test_load_gives_it_back_and_so_once_more": 3,
    "checkpoint/test_reload.py::test_tied_weights_stay_tied": 2,
    "checkpoint/test_reload.py::test_merged_it_is_an_ordinary_network": 2,
    "compress/test_block_by_block.py::test_it_is_what_compress_makes": 2,
    "compress/test_block_by_block.py::test_both_blocks_at_once_are_the_same": 2,
    "compress/test_block_by_block.py::test_what_looks_at_the_outputs_looks_at_those_of_the_block": 3,
    "compress/test_compress_command.py::test_interrupted_it_goes_on_behind_the_last_step": 3,
    "compress/test_compress_command.py::test_other_models": 2,
    "compress/test_from_disk.py::test_it_is_what_compress_makes": 2,
    "compress/test_heal_block_by_block.py::test_it_loses_less": 2,
    "compress/test_heal_block_by_block.py::test_killed_it_goes_on_to_the_same_bits": 3,
    "compress/test_other_inputs.py::test_the_command": 2,
    "depth/test_universal.py::test_positions_that_halted_are_left_out_and_nothing_changes": 3,
    "docs/test_pages.py::test_the_python_of_a_page_runs": 3,
    "genome/test_longest.py::test_needed_is_what_a_real_step_needs": 4,
    "genome/test_longest.py::test_longest_fits_and_two_more_do_not": 5,
    "genome/test_reads.py::test_made_up_reads": 3,
    "lowrank/test_multihead.py::test_equals_the_attention_it_replaces": 5,
    "lowrank/test_multihead.py::test_inside_an_encoder": 5,
    "measure/test_trace.py::test_work_grows_linearly_in_layers": 3,
    "measure/test_trace.py::test_its_flops_are_those_of_the_call": 3,
    "model/test_seq2seq.py::test_equals_its_plain_form": 5,
    "model/test_layer_reduce.py::test_equals_the_mechanism_on_projected_keys_and_values": 5,
    "model/test_layer_plain.py::test_every_size_around_the_slice": 3,
    "model/test_reload_trained.py::test_a_fresh_process_reads_what_was_trained": 3,
    "model/test_compiled.py::test_training": 2,
    "model/test_padded_texts.py::test_an_encoder": 3,
    "model/test_recomputed.py::test_gradients_are_those_of_kept_activations": 3,
    "report/test_results.py::test_a_file_is_reported": 5,
    "solve/test_replay.py::test_the_same_factors": 4,
    "solve/test_unchanged.py::test_broken_off_inside": 5,
    "solve/test_unchanged.py::test_stopped_in_any_step": 2,
    "speech/test_search.py::test_alone_in_a_batch_and_without_a_cache": 3,
    "train/test_several_processes.py::test_the_curve_is_that_of_one_process": 3,
    "train/test_resume.py::test_to_the_bit": 2,
    "train/test_resume.py::test_to_the_bit_where_each_position_has_its_depth": 3,
    "train/test_resume.py::test_with_every_feature": 3,
    "train/test_work_together.py::test_what_two_calibrate_is_what_one_does": 4,
    "train/test_work_together.py::test_block_by_block_too": 2,
    "train/test_work_together.py::test_what_cannot_be_shared_is_refused": 2,
}

LONG = {
    "changes/test_bits.py::test_what_aware_healing_has_learned_is_what_any_way_rounds_to": "healing and rounding alone",
    "changes/test_contract.py::test_plain_networks_are_read_in_a_fresh_process": "test_alone",
    "changes/test_int8_kernels.py::test_without_it_models_reload_and_are_traced": "its layer computes the same",
    "changes/test_replacement.py::test_healing_with_it_goes_on_to_the_bit": "other healings that are stopped",
    "changes/test_seam.py::test_a_change_is_one_file": "test_no_other_file_names_a_change",
    "checkpoint/test_guard.py::test_a_stranger_is_stopped": "test_what_is_known_is_as_it_was",
    "checkpoint/test_reload.py::test_export_and_compile": "export/test_export.py and model/test_compiled.py",
    "checkpoint/test_sentence_transformers.py::test_by_the_command": "test_in_python",
    "cli/test_bench_command.py::test_a_grid_is_measured_once_and_drawn": "measure/test_bench.py, report/test_plot.py",
    "cli/test_compare_stopped.py::test_a_run_that_was_stopped_goes_on_to_the_same_figures": "train/test_resume.py",
    "cli/test_genome_study.py::test_records_of_length_are_for_the_report": "those of the margin",
    "cli/test_pattern_command.py::test_equal_heads_and_layers_are_drawn_once": "other tests of the command",
    "search/test_model_advice.py::test_the_commands_run": "test_names_and_command_lines",
    "compress/test_heal_block_by_block.py::test_what_learns_together_loses_less": "test_it_loses_less",
    "compress/test_recipe_command.py::test_a_changed_model_learns_from_its_original": "test_a_model_longer_and_healed",
    "compress/test_search_command.py::test_stopped_in_the_middle_a_call_goes_on": "search/test_searching.py",
    "export/test_export.py::test_an_onnx_file_that_says_something_else": "test_what_is_baked_in_or_forgotten_is_found",
    "export/test_export_command.py::test_a_compressed_classifier": "test_a_language_model_writes_the_same_everywhere",
    "export/test_packed_linear.py::test_files_keep_them_packed": "test_blocks_hold_the_same_weight",
    "genome/test_risk.py::test_what_is_done_is_not_done_again": "cli/test_genome_study.py",
    "model/test_saving.py::test_what_is_first_wanted_of_transformers_changes_nothing": "test_comes_back_to_the_bit",
    "search/test_searching.py::test_it_is_better_than_as_many_recipes_by_chance": "it finds nearly the best of all",
    "search/test_space.py::test_every_change_alone_is_made": "test_settings_of_every_change_are_the_mildest_first",
    "train/test_killed.py::test_a_truncated_checkpoint_is_named_and_skipped": "train/test_checkpoints_on_disk.py",
    "train/test_several_processes.py::test_a_student_learns_the_same": "the curve is that of one process",
    "train/test_work_together.py::test_two_search_for_a_recipe": "search/test_searching.py, train/test_others.py",
}
"""Long tests, and what shows nearly the same and does run."""


def runs(cases: Sequence[Sequence[Hashable]]) -> list[bool]:
    """Which cases of one test run: those on some diagonals where it has two sides or more, else all.

    Args:
        cases: Where each case stands on each side.
    """
    numbers = [{place: number for number, place in enumerate(dict.fromkeys(side))} for side in zip(*cases, strict=True)]
    wide = [len(places) for places in numbers if len(places) > 1]
    if len(wide) < 2:
        return [True] * len(cases)
    step = min(3, *wide)
    return [sum(places[at] for places, at in zip(numbers, case, strict=True)) % step == 0 for case in cases]

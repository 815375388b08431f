"""Advice on variants and changes of models: their time, memory, energy and cost, predicted or measured."""

"""Search for the recipe of changes that suits a model and a bound best."""

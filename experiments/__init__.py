"""What a measured table or page needs besides the package: made data sets, and attacks on a pipeline's fits."""

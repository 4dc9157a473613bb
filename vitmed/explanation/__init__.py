"""What a trained network relies on.

attention       attention maps by three methods
maps            the maps as data
faithfulness    whether the maps explain anything
corruptions     blur, noise, JPEG, light, stain: `CORRUPTIONS`
robustness      what corruptions cost
results         what the two checks find, as typed results
"""

"""Rounds of many peers in virtual time, over lines and cables that their transfers share. Opens no socket, reads no clock."""

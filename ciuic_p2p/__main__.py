"""`python -m ciuic_p2p` is `ciuic-peer`."""

from ciuic_p2p.cli import main

if __name__ == "__main__":
    main()

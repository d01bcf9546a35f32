#!/bin/sh
exec /usr/bin/railgate check --phase periodic --drain
